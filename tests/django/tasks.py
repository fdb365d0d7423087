"""Tasks of the application."""

from __future__ import annotations

import asyncio

from latchwork.django import current_delivery, tasks

ran = []


@tasks.task
def note(*args, **kwargs):
    ran.append((args, kwargs))
    return False


@tasks.task
def total(*prices):
    return {"total": sum(prices)}


@tasks.task
def long_text():
    return "x" * 70_000


@tasks.task
async def note_async(word):
    ran.append(word)


@tasks.task(takes_context=True)
def attempt(context):
    ran.append((context.attempt, context.task_result.id, context.task_result.task.priority))
    raise ValueError("no stock")


@tasks.task
def once(word):
    current_delivery().once("note").run(ran.append, word)
    raise ValueError("after the effect")


@tasks.task
async def once_async(word):
    await asyncio.to_thread(current_delivery().once("note").run, ran.append, word)
    raise ValueError("after the effect")


def no_task():
    ran.append("a function that is no task")
