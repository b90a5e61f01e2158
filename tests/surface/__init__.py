"""Rules of docs/spec, proved through the REST API, the runner protocol and the files that a server writes."""
