"""What the JAX frontend declares to the plugin registry; imports no framework."""
