"""The page of a monitor: alarms on the residual, tracks of versions, features that moved."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from monitor_records import AlarmList, stream

from hone.decide.estimators.drift.health import FeatureShift
from hone.decide.monitor.config import MonitorConfig
from hone.decide.monitor.monitor import ServiceMonitor
from hone.decide.monitor.page import AlarmMark, DriftPageData, ServedPeriod, write_monitor_page

SHOWN = DriftPageData(
    tenant="<shop>", signal="residual", block=10, means=[0.0, 0.1, -0.4, -0.1],
    alarms=[AlarmMark(count=25, words="the residual has changed & more")],
    shifts=[
        FeatureShift(feature="age", ks=0.3, p_value=1e-9, psi=0.4, changed=True),
        FeatureShift(feature="price", ks=0.02, p_value=0.8, psi=0.01, changed=False),
    ],
    served=[
        ServedPeriod(version="v1", first=0, last=25, reason="first"),
        ServedPeriod(version="v2", first=25, last=30, reason="retrained"),
        ServedPeriod(version="v1", first=30, last=40, reason="recall"),
    ],
)  # fmt: skip


def test_the_page_says_first_what_happened() -> None:
    page = str(SHOWN.render())
    assert "1 alarm of the residual; age moved" in page
    assert "&lt;shop&gt;" in page and "<shop>" not in page
    assert "the residual has changed &amp; more" in page
    svg = page[page.index("<svg") : page.index("</svg>") + 6]
    assert len(ElementTree.fromstring(svg).findall(".//line[@class='stroke s1']")) == 1
    tracks = page[page.index("Versions in service") :]
    assert tracks.count("stroke-width: 5") == 3
    assert tracks.index("<b>age</b>") < tracks.index("price")


def test_a_calm_monitor_has_a_page(tmp_path: Path) -> None:
    monitor = ServiceMonitor(MonitorConfig(), AlarmList())
    write_monitor_page(tmp_path / "empty.html", monitor, "nobody")
    assert "No drift" in (tmp_path / "empty.html").read_text(encoding="utf-8")
    for record in stream([0.0, 1.0, 1.0]):
        monitor.observe(record)
    write_monitor_page(tmp_path / "page.html", monitor, "shop")
    assert "Watched: residual" in (tmp_path / "page.html").read_text(encoding="utf-8")
