"""What mkdocs does besides: the site loads nothing from other hosts, also for the search of pages opened as files."""

from __future__ import annotations

from typing import Any

from mkdocs.utils import get_relative_url

ELSEWHERE = "https://unpkg.com/iframe-worker/shim"
OURS = "javascripts/file_worker.js"


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The theme's plugin for files would load a script from a CDN: ours does the same."""
    return output.replace(ELSEWHERE, get_relative_url(OURS, page.url))


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """Pages that are made from templates, such as 404.html."""
    return output_content.replace(ELSEWHERE, OURS)
