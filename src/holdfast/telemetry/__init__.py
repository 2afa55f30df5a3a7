"""What Holdfast tells about itself. Wording stands here, not where things happen."""
