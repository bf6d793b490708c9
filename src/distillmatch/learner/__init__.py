"""A learner that is fed one task after another, saved, closed, and fed again months later."""
