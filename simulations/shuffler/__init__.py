"""The shuffler, in a simulation and as a service: it sees who, and never what."""
