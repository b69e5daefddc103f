"""Screenshots of the page on a desktop and, with the digits, on a phone: docs/space.png and docs/space-phone.png.

python space/screenshots.py                   # needs Chromium and playwright
"""

import shutil
from pathlib import Path

from app import found_here
from page import LAUNCH, page
from playwright.sync_api import sync_playwright

DOCS = Path(__file__).resolve().parent.parent / "docs"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
# the model that the page opens with, its width and height
SCREENS = {"space.png": ("", 1280, 790), "space-phone.png": ("digits", 390, 1640)}


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for name, (model, width, height) in SCREENS.items():
            app = page(sorted(found_here(), key=lambda folder: not Path(folder).name.startswith(model)))
            _, address, _ = app.launch(prevent_thread_lock=True, quiet=True, **LAUNCH)
            visitor = browser.new_page(viewport={"width": width, "height": height})
            visitor.goto(address)
            visitor.locator(".hf-bidir").first.wait_for()
            visitor.evaluate("Promise.all([...document.images].map((image) => image.decode()))")
            visitor.screenshot(path=DOCS / name)
            app.close()
        browser.close()


if __name__ == "__main__":
    main()
