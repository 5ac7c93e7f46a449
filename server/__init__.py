"""The untrusted side: it sees releases and public data, and nothing else."""
