"""The commands that `manage.py` finds of ours."""
