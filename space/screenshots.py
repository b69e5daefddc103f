"""Screenshots of the page as it opens, on a desktop and on a phone: docs/space.png and docs/space-phone.png.

python space/screenshots.py                   # needs Chromium and playwright
"""

import shutil
from pathlib import Path

from app import LAUNCH, found_here, page
from playwright.sync_api import sync_playwright

DOCS = Path(__file__).resolve().parent.parent / "docs"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
SCREENS = {"space.png": (1280, 960), "space-phone.png": (390, 1660)}


def main() -> None:
    app = page(found_here())
    _, address, _ = app.launch(prevent_thread_lock=True, quiet=True, **LAUNCH)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for name, (width, height) in SCREENS.items():
            visitor = browser.new_page(viewport={"width": width, "height": height})
            visitor.goto(address)
            visitor.locator(".heads button").first.wait_for()
            visitor.evaluate("Promise.all([...document.images].map((image) => image.decode()))")
            visitor.screenshot(path=DOCS / name)
        browser.close()
    app.close()


if __name__ == "__main__":
    main()
