"""HTTP: translate and authorise, nothing else."""
