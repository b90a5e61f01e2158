"""The tests of Delta CI.

A folder with the name of a package tests that package: `tests/runner/log` tests `deltaci.runner.log`. `tests/bench`,
`tests/chaos` and `tests/scripts` test the tools of these names. The other folders test more than one package: `spec`
the rules of docs/spec on the core, `surface` the same rules through the API, the runner protocol, files and the
library, `contract` the engine over every store, `browser` the web interface in a real browser, `e2e` real processes,
`crash` killed processes, `fuzz` unusual input. `support` is code that several folders share.
"""
