"""One process per engine: `celery -A workers worker`."""
