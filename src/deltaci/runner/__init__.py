"""The runner: it takes leases, executes jobs, and proves that nothing of them is left."""
