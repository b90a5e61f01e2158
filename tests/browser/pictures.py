"""Pictures of the web interface, for people who have not started it yet: made by looking at it.

`PICTURES=1 pytest tests/browser/test_every_page.py -k pictures` writes those of the README. Times and ids are different
each time, so they are not compared; what is checked is that each is a picture of a page, and that the README has all.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Page, expect

from tests.browser.browsing import Person

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1280, 800
MAX_BYTES: Final = 120_000
PICTURES: Final[dict[str, Literal["light", "dark"]]] = {
    "web-runs": "light",
    "web-run": "light",
    "web-job": "dark",
    "web-workstreams": "light",
}


def shown(person: Person, name: str, ids: dict[str, str]) -> Page:
    """The page, once what makes it worth a picture is there."""
    if name == "web-runs":
        page = person.go("/runs")
        expect(page.locator(f"#run-{ids['green']}").get_by_text("succeeded")).to_be_visible()
    elif name == "web-run":
        page = person.go(f"/runs/{ids['run']}")
        expect(page.locator("#run-status").get_by_text("failed")).to_be_visible()
    elif name == "web-job":
        page = person.go(f"/runs/{ids['run']}/jobs/{ids['job']}")
        expect(page.locator(".log-text").get_by_text("test_umlauts_are_found").first).to_be_visible()
    else:
        page = person.go("/workstreams")
        expect(page.get_by_text("Better search").first).to_be_visible()
    expect(page.locator("#live")).to_have_attribute("data-own-state", "live")
    return page


# -- a PNG with a palette is a third of one without

# The picture as numbers of colours, the most frequent first; what is not among the first 256 becomes the nearest.
COUNTED: Final = """
async (text) => {
  const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  const picture = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0);
  const data = context.getImageData(0, 0, picture.width, picture.height).data;
  const colour = (at) => (data[at] << 16) | (data[at + 1] << 8) | data[at + 2];
  const counts = new Map();
  for (let at = 0; at < data.length; at += 4) counts.set(colour(at), (counts.get(colour(at)) ?? 0) + 1);
  const palette = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 256).map(([each]) => each);
  const numbers = new Map(palette.map((each, n) => [each, n]));
  const far = (a, b) => [16, 8, 0].reduce((sum, n) => sum + (((a >> n) & 255) - ((b >> n) & 255)) ** 2, 0);
  for (const each of counts.keys()) {
    if (numbers.has(each)) continue;
    let best = 0;
    for (let n = 1; n < palette.length; n++) if (far(palette[n], each) < far(palette[best], each)) best = n;
    numbers.set(each, best);
  }
  const all = new Uint8Array(data.length / 4).map((_, at) => numbers.get(colour(4 * at)));
  let made = "";
  for (let at = 0; at < all.length; at += 8192) made += String.fromCharCode(...all.subarray(at, at + 8192));
  return [picture.width, picture.height, palette, btoa(made)];
}
"""


def packed(page: Page, png: bytes) -> bytes:
    """The same picture with a palette; another page, which shows nothing, counts the colours."""
    width, height, palette, text = page.evaluate(COUNTED, b64encode(png).decode())
    all = b64decode(text)
    lines = b"".join(b"\0" + all[at : at + width] for at in range(0, len(all), width))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    colours = b"".join(each.to_bytes(3, "big") for each in palette)
    parts = ((b"IHDR", head), (b"PLTE", colours), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
