"""Other people's verifiers behind the protocol that `univer certify` takes."""
