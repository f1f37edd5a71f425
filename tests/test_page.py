"""The page in a real browser: each kind of model is asked, and nothing but the server is."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pandas as pd
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import demur
from demur.report.evaluation import titled_sheet
from demur.report.sheet import render
from tests.serving import ask, images, png, save_models, served

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed; apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()
    driver.service.process.wait(10)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(save_models(tmp_path_factory.mktemp("models"))) as (port, _):
        yield port


def choose(browser: webdriver.Chrome, name: str) -> None:
    browser.find_element(By.CSS_SELECTOR, f"#model option[value={name}]").click()


def decision(browser: webdriver.Chrome) -> str:
    return WebDriverWait(browser, 20).until(lambda found: found.find_element(By.ID, "decision")).text


def opened(browser: webdriver.Chrome, port: int, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(f"http://127.0.0.1:{port}/")
    WebDriverWait(browser, 20).until(lambda found: found.find_elements(By.CSS_SELECTOR, "#model option"))


@pytest.mark.parametrize("width", [1200, 390])
def test_each_kind_is_asked_by_keyboard_and_nobody_else_is(browser, port, width, tmp_path: Path):
    opened(browser, port, width)
    text = browser.find_element(By.ID, "text")
    choose(browser, "text")
    text.send_keys("wave ship tide gull sand salt", Keys.CONTROL + Keys.ENTER)
    assert "sea" in decision(browser)
    choose(browser, "table")
    text.clear()
    text.send_keys("a,b,c\n900,-900,900", Keys.CONTROL + Keys.ENTER)
    assert "unknown" in decision(browser)
    assert "would have been accepted" in browser.find_element(By.ID, "answer").text
    assert len(browser.find_elements(By.CSS_SELECTOR, "#answer .bars .name")) == 2
    choose(browser, "image")
    file = tmp_path / "image.png"
    file.write_bytes(png(images(2)[0][1, 0]))
    browser.find_element(By.ID, "file").send_keys(str(file))
    assert "below" in decision(browser) or "un" in decision(browser)
    assert browser.find_elements(By.CSS_SELECTOR, "#answer svg")
    browser.find_element(By.ID, "tab-ask").send_keys(Keys.ARROW_RIGHT)
    WebDriverWait(browser, 20).until(lambda found: len(found.find_elements(By.CSS_SELECTOR, "#watch .card")) == 3)
    wide, there = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= there
    assert browser.get_log("browser") == []
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {
        urlsplit(each["params"]["request"]["url"]) for each in sent if each["method"] == "Network.requestWillBeSent"
    }
    assert {at.netloc for at in asked if at.scheme not in ("data", "blob")} == {f"127.0.0.1:{port}"}


def test_what_is_wrong_is_said_on_the_page(browser, port):
    opened(browser, port, 1200)
    choose(browser, "table")
    text = browser.find_element(By.ID, "text")
    for given, wrong in (
        ("1,2", "3 numbers"),
        ("a,b,c\n1,2,3\n4,5,6", "one row at a time"),
        ("[[1,2,3],[4,5,6]]", "one row at a time"),
        ("[1,2", "close its brackets"),
    ):
        text.clear()
        text.send_keys(given, Keys.CONTROL + Keys.ENTER)
        WebDriverWait(browser, 20).until(lambda found, wrong=wrong: wrong in found.find_element(By.ID, "said").text)
    browser.get_log("browser")  # Chromium logs the 422


@pytest.mark.parametrize(
    "given", ["2,2.1,1.9", '"2","2.1","1.9"', "c;a;more;b\n1.9;2;x;2.1", "[2,2.1,1.9]", '[{"a":2,"b":2.1,"c":1.9}]']
)
def test_a_row_is_read_however_it_is_pasted(browser, port, given):
    opened(browser, port, 1200)
    choose(browser, "table")
    browser.find_element(By.ID, "text").send_keys(given, Keys.CONTROL + Keys.ENTER)
    assert "high" in decision(browser)


def test_cells_of_a_table_of_categories_stay_as_they_are(browser, tmp_path: Path):
    """A code such as 01 is no number, and a quoted cell may hold what divides cells."""
    x = pd.DataFrame({"code": ["01", "1, 2"] * 100, "size": [1.0, 2.0] * 100}).astype({"code": "category"})
    demur.Classifier("map+nc", epochs=30, device="cpu").fit(x, ["a", "b"] * 100).save(tmp_path / "codes.demur")
    with served({"codes": tmp_path / "codes.demur"}) as (port, _):
        for given, label in (("01,1", "a"), ('"1, 2",2', "b")):
            opened(browser, port, 1200)
            browser.find_element(By.ID, "text").send_keys(given, Keys.CONTROL + Keys.ENTER)
            assert label in decision(browser)
            assert "unknown" not in decision(browser)


def test_the_page_allows_itself_no_other_host(port):
    status, page, headers = ask(port, "/")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert b"http" not in page.replace(b"http://www.w3.org/2000/svg", b"")


def test_a_table_of_a_report_is_sorted_by_its_numbers(browser, tmp_path: Path):
    """As they are written: a comma between thousands, a dot for none, a dash where there is no number."""
    rows = [("a", "1,234"), ("b", "-"), ("c", "·"), ("d", "56"), ("e", "1,022,000"), ("f", "-3.5")]
    sheet = titled_sheet("Counts", ("set", "inputs"), rows, "")
    page = render("comparison.html", places=[], data="x", inputs=0, ood=[], tables=[sheet], figures=[])
    (tmp_path / "index.html").write_text(page, "utf-8")
    browser.get(f"file://{tmp_path}/index.html")
    found = []
    for _ in range(3):
        browser.find_elements(By.CSS_SELECTOR, "thead button")[1].click()
        found.append("".join(row.text for row in browser.find_elements(By.CSS_SELECTOR, "tbody th")))
    assert found == ["fcdaeb", "eadcfb", "abcdef"]
