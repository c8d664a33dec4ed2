"""The parts of the page that are HTML: images with captions, and the norms. All text is escaped."""

import base64
from typing import Any

import jinja2
from PIL import Image

from modeling_aligned_llava.diagnostics.measure.verdict import verdict
from modeling_aligned_llava.loading.images import data_uri


HEADS = ("model", "visual tokens", "text embeddings", "ratio")
_TEMPLATES = jinja2.Environment(autoescape=True)
_FIGURE = _TEMPLATES.from_string("""<figure style="margin: 0">
<img src="{{ address }}" alt="{{ alt }}" style="max-width: 100%; max-height: {{ height }}">
{% if caption %}<figcaption style="margin-top: 0.5rem">{{ caption }}</figcaption>{% endif %}
</figure>""")
_HEADING = _TEMPLATES.from_string("<h2>{{ text }}</h2>")
_NORMS = _TEMPLATES.from_string("""
{% for name, said in verdicts %}<p>{{ name }}, on this image: {{ said }}.</p>
{% endfor %}
<div role="region" aria-label="Norms by layer" tabindex="0" style="overflow-x: auto">
<img src="{{ figure }}" style="min-width: {{ 18 * rows|length }}rem; max-width: 100%; background: white"
 alt="Norm and rotation of visual and text tokens by layer, one column per model; the table has the first layer.">
<table><caption>Mean L2 norm at the first layer</caption>
<tr>{% for head in heads %}<th scope="col">{{ head }}</th>{% endfor %}</tr>
{% for name, numbers in rows %}
<tr><th scope="row">{{ name }}</th>{% for number in numbers %}<td>{{ "%.2f"|format(number) }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>""")


def heading(text: str) -> str:
    """A heading of a column."""
    return _HEADING.render(text=text)


def figure(image: Image.Image, alt: str, caption: str = "", height: str = "none") -> str:
    """An image as a data URI; `alt` describes it to screen readers, `height` is its maximum as a CSS length."""
    return _FIGURE.render(address=data_uri(image, "JPEG", quality=90), alt=alt, caption=caption, height=height)


def norms(drawing: bytes, profiles: dict[str, dict[str, Any]]) -> str:
    """The verdict of each profile on its image, all drawn (an SVG), and their norms at the first layer as a table."""
    rows = []
    for name, profile in profiles.items():
        visual, text = (profile["norms"][where]["mean"] for where in ("visual tokens at layer 0", "text embeddings"))
        rows.append((name, (visual, text, profile["ratio"])))
    verdicts = [(name, said["summary"]) for name, profile in profiles.items() if (said := verdict(profile))]
    address = f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}"
    return _NORMS.render(figure=address, heads=HEADS, rows=rows, verdicts=verdicts)
