"""A web console for the person on call: what `latchwork top` shows, in a browser. Closed by default.

    from latchwork.console import Access, app

    def authorize(request):                # whoever your application has signed in; None = nobody
        user = request.session.get("user")
        return Access(user, "operator") if user else None

    outer.mount("/latchwork", app({"iad": store}, authorize=authorize, actions=True, hosts=["ops.example.com"]))

It is an ASGI application. It needs the extra `console`.
"""

from __future__ import annotations

try:
    from .access import Access, ProxyHeader, Secret
    from .site import app
except ModuleNotFoundError as failure:
    if (failure.name or "latchwork").partition(".")[0] == "latchwork":
        raise
    raise ModuleNotFoundError(
        f"{failure.name} is not installed; install the extra: pip install 'latchwork[console]'", name=failure.name
    ) from failure

__all__ = ["app", "Access", "Secret", "ProxyHeader"]
