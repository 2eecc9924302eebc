"""The served page: other texts, silenced heads, masked tokens; and who is turned away."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

import numpy as np
import pytest
from looking import HOSTILE, Watch, head_of, lists, retype, until
from serving import Served, serving, start

import headscope as hs
from headscope.page.questions import Question
from headscope.page.runs import rerun
from headscope.page.session import HOST
from patience import PATIENCE


@pytest.fixture(scope="module")
def served(bert: hs.Model) -> Iterator[Served]:
    running = start(bert.trace("The cat took off her [MASK]."))
    yield running
    running.stop()


def ask(
    served: Served, method: str, path: str, *, body: object = None, host: str | None = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection(HOST, served.session.port, timeout=PATIENCE)
    sent = {
        "Host": host or f"{HOST}:{served.session.port}",
        **{name.replace("_", "-"): text for name, text in headers.items()},
    }
    raw = body if isinstance(body, bytes) else json.dumps(body)
    connection.request(method, path, None if body is None else raw, sent)
    answer = connection.getresponse()
    result = answer.status, answer.read().decode(errors="replace"), dict(answer.getheaders())
    connection.close()
    return result


def test_another_text_is_run_and_kept_as_a_tab(watch: Watch, bert: hs.Model, served: Served) -> None:
    page = watch().open(served.session.address())
    retype(page, "The dog sat down!")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-test=tab] >> nth=1")
    until(page, "document.querySelector('.tab.on').textContent.includes('dog')")
    page.evaluate("location.hash = '#d=1&l=1&q=1'")
    until(page, "document.querySelector('[data-test=head]').textContent === 'Head 1.0'")
    weights = bert.trace("The dog sat down!")[1, 0].weights[1]
    lists(page, weights, 1e-3)
    retype(page, "   ")
    page.locator("[data-test=text]").press("Enter")
    assert "empty" in page.locator("[role=alert]").inner_text()
    retype(page, "the " * 100)
    page.locator("[data-test=text]").press("Enter")
    until(page, "document.querySelector('[role=alert]').textContent.includes('at most')")
    assert "what to do: shorten the text" in page.locator("[role=alert]").inner_text()
    assert "max" not in page.locator("[role=alert]").inner_text().split("what to do:")[1]


def test_silence_a_head_and_mask_a_token(watch: Watch, bert: hs.Model, served: Served) -> None:
    page = watch().open(f"{served.session.address()}#q=2")
    for key in ("x", "M"):
        page.keyboard.press(key)
    page.locator("[data-test=run]").click()
    page.wait_for_selector("[data-test=changed]")
    text = page.locator("[data-test=outcomes]").inner_text()
    assert "before" in text
    assert "after" in text
    assert "[MASK] at 6" in text
    assert "[MASK] at 2" in text
    base = served.session.traces[next(iter(served.session.traces))]
    again = rerun(bert, base, Question("change", ablate=((0, 0),), mask=(2,)))
    best = hs.Model.trace(bert, ids=list(again.ids), ablate=[(0, 0)])
    np.testing.assert_array_equal(best.outputs["last_hidden_state"].array, again.outputs["last_hidden_state"].array)
    assert again.tokens[2] == "[MASK]"
    assert again.words == base.words
    assert page.locator("[data-test=tab]").count() == 2


def test_before_and_after_stay_apart_whichever_is_looked_at(watch: Watch, served: Served) -> None:
    """Changes belong to the text that they were chosen for; a changed run stays after its original."""
    page = watch().open(f"{served.session.address()}#pane=causes&way=these")
    tokens = page.locator("[data-test=tokens] button")
    tokens.nth(2).click()
    assert tokens.nth(2).get_attribute("aria-pressed") == "true"
    page.locator("[data-test=silence]").click()
    page.locator("[data-test=run]").click()
    page.wait_for_selector("[data-test=changed] li")
    message = page.locator("[data-test=outcomes]").inner_text()
    assert "not masked" in message
    assert "originally “\u2068cat\u2069”" in message
    until(page, "document.querySelector('[data-test=changed]').getAttribute('aria-busy') === 'false'")
    ranked_heads = page.locator("[data-test=changed]").inner_text()
    page.keyboard.press("]")
    until(page, "document.querySelectorAll('.tab')[1].classList.contains('on')")
    assert page.locator("[data-test=outcomes]").inner_text() == message
    until(page, "document.querySelector('[data-test=changed]').getAttribute('aria-busy') === 'false'")
    assert page.locator("[data-test=changed]").inner_text() == ranked_heads
    assert tokens.nth(2).inner_text() == "cat"
    retype(page, "The dog!")
    page.locator("[data-test=text]").press("Enter")
    until(page, "document.querySelectorAll('[data-test=tokens] button').length === 5")
    assert page.locator("[data-test=tokens] [aria-pressed=true]").count() == 0
    assert "mask a token to see" in page.locator(".causes").inner_text()
    assert page.locator("[data-test=run]").is_disabled()


def test_page_and_answers_carry_a_strict_policy(served: Served) -> None:
    status, _, headers = ask(served, "GET", f"/?token={served.session.token}")
    policy = headers["content-security-policy"]
    assert status == 200
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert "unsafe" not in scripts
    assert "sha256-" in scripts
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("token", ["", "wrong", "%C3%A9"])
def test_a_wrong_token_is_refused(served: Served, token: str) -> None:
    status, text, _ = ask(served, "GET", f"/?token={token}")
    assert (status, "wrong token" in text) == (403, True)
    status, _, _ = ask(served, "POST", "/api/trace", body={"text": "cat"}, x_headscope_token="wrong")
    assert status == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example"])
def test_another_name_for_this_address_is_refused(served: Served, host: str) -> None:
    status, text, _ = ask(served, "GET", f"/?token={served.session.token}", host=host)
    assert status == 421
    assert served.session.token not in text


def test_another_site_s_page_is_refused(served: Served) -> None:
    token = served.session.token
    status, _, _ = ask(
        served, "POST", "/api/trace", body={"text": "cat"}, x_headscope_token=token, origin="http://evil.example"
    )
    assert status == 403


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"[" * 100_000,
        {"base": "no"},
        {"text": 3},
        {"text": "cat", "ablate": [[9, 9]]},
        {"text": "cat", "ablate": "x"},
    ],
)
def test_what_makes_no_sense_is_refused_in_words(served: Served, body: object) -> None:
    status, text, _ = ask(served, "POST", "/api/trace", body=body, x_headscope_token=served.session.token)
    assert status == 400 or json.loads(text.splitlines()[-1])["refused"]


def test_a_cut_connection_is_said_and_the_picture_stays(watch: Watch, bert: hs.Model) -> None:
    running = start(bert.trace("The cat sat."))
    watched = watch(quiet=False)
    page = watched.open(running.session.address())
    running.stop()
    retype(page, "The dog sat.")
    page.locator("[data-test=text]").press("Enter")
    until(page, "document.querySelector('[role=alert]').textContent.includes('Start `headscope view` again')")
    page.locator("[data-test=head]").click()
    page.keyboard.press("ArrowRight")
    assert head_of(page) == "Head 0.1"


def test_hostile_tokens_served(watch: Watch, hostile: hs.Trace) -> None:
    with serving(hostile) as session:
        page = watch().open(session.address())
        assert page.locator(".left .token bdi").all_inner_texts()[1:4] == list(HOSTILE[:3])
        retype(page, HOSTILE[0])
        page.locator("[data-test=text]").press("Enter")
        page.wait_for_selector("[data-test=tab] >> nth=1")
        assert page.locator("#page img, #page script").count() == 0
