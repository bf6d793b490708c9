"""Views: weakly and strongly augmented images, whole batches at a time."""
