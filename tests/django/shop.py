"""The views of the application; each stores an order and enqueues a task in one transaction."""

from __future__ import annotations

from django.db import connection, transaction
from django.http import HttpResponse, JsonResponse
from django.urls import path

from .tasks import note, total


def _store(sku):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", [sku])


def order(request, sku):
    with transaction.atomic():
        _store(sku)
        result = note.enqueue(sku)
        seen = request.META["depth"]()
        if sku == "bad":
            raise ValueError("the order is refused")
    return HttpResponse(f"{result.id} {seen}")


def orders(request):
    with transaction.atomic():
        for sku in ("kept", "bad"):
            try:
                with transaction.atomic():
                    _store(sku)
                    note.enqueue(sku)
                    if sku == "bad":
                        raise ValueError("this one is refused")
            except ValueError:
                continue
    return HttpResponse()


async def awaited(request, sku):
    result = await note.aenqueue(sku)
    return HttpResponse(result.id)


def sum_of(request, id):
    result = total.get_result(id)
    return JsonResponse({"status": result.status, "value": result.return_value if result.is_finished else None})


urlpatterns = [
    path("order/<sku>", order),
    path("orders", orders),
    path("awaited/<sku>", awaited),
    path("sum/<id>", sum_of),
]
