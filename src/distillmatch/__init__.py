"""Semi-supervised continual learning in which the unlabelled world is the replay buffer."""
