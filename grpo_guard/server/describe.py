"""The server's OpenAPI description, and a page that shows it.

The page is plain HTML without scripts. The usual viewers load their scripts from another host. That
host could then run code at an address that is allowed to query the guard, and a cluster without a
network could not reach that host.
"""

import json
from html import escape
from pathlib import Path
from typing import Any

from grpo_guard.core.version import __version__

DESCRIPTION = Path(__file__).with_name("openapi.json")
# Allow nothing but the page itself and its own style.
PAGE_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
_STYLE = "body{font:1rem/1.5 sans-serif;max-width:50rem;margin:auto;padding:1rem}pre{overflow:auto}"


def openapi() -> dict[str, Any]:
    """Return the server's description in OpenAPI 3.1."""
    described: dict[str, Any] = json.loads(DESCRIPTION.read_text(encoding="utf-8"))
    described["info"]["version"] = __version__
    return described


def page(described: dict[str, Any]) -> str:
    """Render the description as HTML: each path with its example, then the schemas."""
    info = described["info"]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info['description'])} As JSON: <a href=openapi.json>openapi.json</a>.</p>",
    ]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            parts.append(
                f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation['summary'])}</p>"
            )
            if "requestBody" in operation:
                parts.append("<p>Request:</p>" + _example(operation["requestBody"]))
            parts.append("<p>Answer:</p>" + _example(operation["responses"]["200"]))
    components = described["components"]
    parts.append("<h2>Refusals, whatever the status</h2>")
    parts.append(_example(components["responses"]["Refused"]))
    for name, schema in components["schemas"].items():
        parts.append(f"<h3>{escape(name)}</h3>{_pre(schema)}")
    return "\n".join(parts)


def _example(body: dict[str, Any]) -> str:
    (content,) = body["content"].values()
    return _pre(content.get("example", content["schema"]))


def _pre(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2))}</pre>"
