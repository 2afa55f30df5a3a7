"""What tests need: here for users' tests, in `server` for Holdfast's own. Never imported by the library itself."""
