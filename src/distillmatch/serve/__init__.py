"""The review page: a person labels camera images in a browser on this machine."""
