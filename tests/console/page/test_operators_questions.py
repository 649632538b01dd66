"""What operators ask of the page: which model thrashes, is a worker ill, what is next; and acting there."""

from __future__ import annotations

from mainspring.messages.operating import DrainWorker, PinModel, ResumeWorker
from tests.console.page.conftest import Open
from tests.console.page.live import TOKEN, Site, wait_until
from tests.console.page.test_operating import commands

WORKER = "{ name: 'w', infer_error_p99_us: 100, load_error_p99_us: 38000 }"


def test_a_worker_is_called_ill_where_its_errors_are_far_from_its_kinds(open_page: Open) -> None:
    page = open_page("#/cluster")
    judged = page.evaluate(
        f"""() => import('./views/workers.js').then(({{ errors }}) => [
            errors({WORKER}, {{ workers: 3, infer_error_us: 90, load_error_us: 800 }}),
            errors({WORKER}, {{ workers: 3, infer_error_us: 90, load_error_us: 30000 }}),
            errors({WORKER}, {{ workers: 0, infer_error_us: null, load_error_us: null }})])"""
    )
    assert judged == [["LOAD error 38.0 ms, the norm of its kind is 800 \u00b5s"], [], []]


def test_a_load_is_joined_to_the_infer_that_it_made_possible(open_page: Open) -> None:
    page = open_page("#/cluster")
    joined = page.evaluate(
        """() => import('./parts/actions.js').then(({ joined }) => {
            const one = (id, lane, kind, model, begin, end, status = 'ok') =>
                [id, lane, kind, model, 1, 1, [], 0, 0, 0, begin, end, begin, end, status, ''];
            const actions = [one(1, 1, 'LOAD', 'a', 10e6, 20e6), one(2, 0, 'INFER', 'a', 21e6, 25e6),
                one(3, 0, 'INFER', 'a', 26e6, 30e6), one(4, 0, 'INFER', 'b', 21e6, 25e6),
                one(5, 3, 'LOAD', 'b', 1e6, 5e6), one(6, 1, 'LOAD', 'a', 40e6, 50e6),
                one(7, 0, 'INFER', 'a', 51e6, 52e6, 'not_resident'), one(8, 0, 'INFER', 'a', 60e6, 61e6)];
            return joined(actions, (action) => (action[1] < 2 ? 'w0' : 'w1'))
                .map((pair) => pair.map((each) => each[0])); })"""
    )
    assert joined == [[1, 2], [6, 8]]


def test_workers_and_models_are_operated_on_their_own_pages(open_page: Open, site: Site) -> None:
    page = open_page("#/worker/worker-1")
    box = page.locator("section[aria-label=Operate]")
    drain = box.get_by_role("button", name="Drain")
    drain.wait_for()
    assert drain.is_disabled()
    box.get_by_role("link", name="Enter a token").click()
    page.fill("#operate-token", TOKEN)
    page.get_by_role("button", name="Use it").click()
    page.go_back()
    for verb in ("Drain", "Resume"):
        box.get_by_role("button", name=verb).click()
        page.get_by_role("dialog").get_by_role("button", name=verb).click()
        box.locator(".result[data-good=true]").wait_for()
    page.evaluate("location.hash = '#/model/small-5'")
    box.get_by_role("button", name="Pin", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Pin").click()
    box.locator(".result[data-good=true]").wait_for()
    wanted = {DrainWorker("worker-1"), ResumeWorker("worker-1"), PinModel("small-5")}
    wait_until(lambda: wanted <= set(commands(site)), "the commands in the event log")
