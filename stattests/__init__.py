"""The certification library: whether a verifier is lossless, with true error rates."""
