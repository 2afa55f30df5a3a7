"""No models: our tables aren't Django's. But Django tells only apps with this module that it has migrated."""
