"""The least that a FastAPI server can do with a body: read its JSON and send it back."""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.post("/v1/verify")
async def echo(body: dict[str, object]) -> dict[str, object]:
    """Return the body."""
    return body


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=0, access_log=False)
