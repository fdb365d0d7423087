"""The backend for django.tasks, on the real framework."""
