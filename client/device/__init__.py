"""A client as a device: installed from a bundle, connected to a SuperLink, asked, and read by its user."""
