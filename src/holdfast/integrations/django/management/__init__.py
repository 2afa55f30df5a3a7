"""What `manage.py` finds of ours."""
