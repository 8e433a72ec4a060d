"""torch against the oracle: the same trees, laws and uniforms must give the same answer."""
