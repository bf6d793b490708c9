"""Streams: the semi-supervised continual setting as index lists."""
