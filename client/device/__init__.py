"""A client as a device: installation from a bundle, connection to a SuperLink, inference, and reports for its user."""
