"""A browser without a network for tests of pages: Chromium or Firefox, driven by playwright."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tools
from playwright.sync_api import sync_playwright

TIMEOUT_S = 60
PROGRAMS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome", "chrome"),
    "firefox": ("firefox-esr", "firefox"),
}
OPTIONS: dict[str, dict[str, Any]] = {
    # In a container, Chromium has neither the rights for its sandbox nor a large /dev/shm.
    "chromium": {"args": ["--no-sandbox", "--disable-dev-shm-usage"]},
    # By WebDriver BiDi, which any Firefox has; without it, playwright starts a build of its own.
    "firefox": {"channel": "moz-firefox"},
}


@dataclass
class Tab:
    """A tab of the browser, and what went wrong in it."""

    page: Any  # the page, as playwright has it
    # Errors and warnings of the console, exceptions, dialogs and requests.
    problems: list[str] = field(default_factory=list)

    def run(self, script: str, argument: Any = None) -> Any:
        """Run JavaScript in the page."""
        return self.page.evaluate(script, argument)

    def wait(self, condition: str, argument: Any = None) -> None:
        """Wait until a JavaScript function returns true.

        playwright's own waiting needs `eval`, which the policy of a page forbids.
        """
        end = time.monotonic() + TIMEOUT_S
        while not self.page.evaluate(condition, argument):
            assert time.monotonic() < end, f"not within {TIMEOUT_S} s: {condition}"
            time.sleep(0.02)


@contextlib.contextmanager
def driver() -> Iterator[Any]:
    """Start playwright."""
    with sync_playwright() as running:
        yield running


@contextlib.contextmanager
def started(running: Any, name: str = "chromium") -> Iterator[Any]:
    """Start a browser."""
    path = tools.program(*PROGRAMS[name])
    browser = getattr(running, name).launch(executable_path=path, **OPTIONS[name])
    yield browser
    browser.close()


@contextlib.contextmanager
def opened(browser: Any, path: Path, address: str = "", **options: Any) -> Iterator[Tab]:
    """Open a file with the network off.

    Args:
        browser: The browser.
        path: The file.
        address: What follows "#" in the address.
        options: Those of the browser's context, such as `color_scheme`.
    """
    options = {"offline": True, "viewport": {"width": 1280, "height": 900}, **options}
    context = browser.new_context(**options)
    context.set_default_timeout(1000 * TIMEOUT_S)
    tab = Tab(context.new_page())
    page, problems, url = tab.page, tab.problems, path.absolute().as_uri()

    def ask(request: Any) -> None:
        if request.url.partition("#")[0] != url and not request.url.startswith("data:"):
            problems.append(f"request: {request.url}")

    def dialog(shown: Any) -> None:
        problems.append(f"dialog: {shown.message}")
        shown.dismiss()

    page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: problems.append(f"exception: {error}"))
    page.on("request", ask)
    page.on("dialog", dialog)
    try:
        page.goto(url + (f"#{address}" if address else ""))
        yield tab
    finally:
        context.close()
