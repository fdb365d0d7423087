"""A Django of its own for these tests: set up once for the process, as a program does."""

from __future__ import annotations

import atexit
import shutil
import tempfile

import django
from django.conf import settings
from django.db import connection

FOLDER = tempfile.mkdtemp(prefix="latchwork-django-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def backend(**options):
    """The setting TASKS, with these options of the backend."""
    return {"default": {"BACKEND": "latchwork.django.QueueBackend", "OPTIONS": options}}


settings.configure(
    USE_TZ=True,
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF="tests.django.shop",
    DEBUG_PROPAGATE_EXCEPTIONS=True,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{FOLDER}/shop.db"}},
    TASKS=backend(store="memory:", client_id="none", levels={"-urgent": 50, "": -100}),
)
django.setup()
with connection.cursor() as made:
    made.execute("CREATE TABLE orders (sku TEXT)")
