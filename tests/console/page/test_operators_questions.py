"""What operators ask of the page: which model thrashes, is a worker ill, what is next; and acting there."""

from __future__ import annotations

import pytest

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


def test_it_is_said_how_much_longer_others_wait_for_a_model_than_planned(open_page: Open) -> None:
    page = open_page("#/cluster")
    said = page.evaluate(
        """() => import('./views/model.js').then(({ spreadText }) => [
            { batch_size: 4, sizes: '64x8', durations: 900,
              median_ms: 4, mean_ms: 7.6, p99_ms: 40, estimate_ms: 12 },
            { batch_size: 1, sizes: '', durations: 300,
              median_ms: 4, mean_ms: 4, p99_ms: 4.2, estimate_ms: 4.5 },
        ].map(spreadText))"""
    )
    assert said == [
        "A batch of 4 of sizes up to 64 x 8 took 4.00 ms by the median, 7.60 ms on average and 40.0 ms at "
        "the 99th percentile of 900. Others are planned behind it by 12.0 ms: one run in a hundred makes "
        "them wait 28.0 ms more than that, or longer.",
        "A batch of 1 took 4.00 ms by the median, 4.00 ms on average and 4.20 ms at the 99th percentile of "
        "300. No more than one run in a hundred makes others wait longer than they are planned for.",
    ]


def test_a_models_page_says_nothing_of_its_spread_before_enough_is_known(open_page: Open) -> None:
    page = open_page("#/cluster")
    hidden = page.evaluate(
        """() => import('./views/model.js').then(({ durationsPanel }) => {
            const { root, draw } = durationsPanel();
            draw({ line: { erratic: false, infer_ms: { 1: 2 } }, spread: null, outlier: null, load_now_ms: 20,
                profiles: { cpu: { 1: 2 } }, load_ms: { cpu: 20 }, buckets: [] }, { now_ns: 0 });
            return [root.querySelector('p').hidden, root.querySelector('.mark').hidden]; })"""
    )
    assert hidden == [True, True]


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


def test_a_kind_tells_its_price_and_the_share_of_its_answers_in_time(open_page: Open) -> None:
    page = open_page("#/operate")
    said = page.evaluate(
        """() => import('./views/operate.js').then(({ howItStands }) => {
            const kind = { kind: 't3', running: 2, wanted: 3, leaving: ['w1'], fault: '', price: 0.3328 };
            return [howItStands({ ...kind, in_time: 99, late: 1 }),
                howItStands({ ...kind, leaving: [], price: 0, in_time: 0, late: 0, fault: 'no room' })]; })"""
    )
    assert said == [
        "2 of 3 run, 1 about to leave, 0.3328 an hour each, 99.00 % of 100 answers in time",
        "2 of 3 run; no room",
    ]


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


GPU = """{
    clock_mhz: 1410, throttled: ["power", "temperature_hardware"], temperature_c: 71, power_w: 699.6,
    memory_used_bytes: 140 * 2 ** 30, uncorrected_errors: 0, remapped_rows: 2, xid_errors: null,
    without_graph: 1, notes: [
        "GPU at 0000:3b:00.0: its clocks are held down by its power limit (for 12 s); the same kernels take "
            + "longer than when the models were measured",
        "kernels of 1 executable are launched one by one, because no CUDA graph can be made: GPU 0: "
            + "operation not supported; each EXEC takes longer by its launches"] }"""


@pytest.mark.parametrize("width", [1280, 390])
def test_a_workers_page_shows_what_its_gpu_says(open_page: Open, width: int) -> None:
    page = open_page("#/worker/worker-1", width)
    panel = page.get_by_role("region", name="Device")
    assert panel.count() == 0, "an emulated device says nothing"
    page.evaluate(
        f"""() => import('./views/worker.js').then(({{ gpuPanel }}) => {{
            const made = gpuPanel();
            document.querySelector('main .panel').after(made.root);
            window.draw = made.draw;
            made.draw({GPU});
        }})"""
    )
    shown = panel.inner_text()
    for text in ("1,410 MHz", "power, temperature hardware", "71 °C", "700 W", "140 GiB", "Remapped rows"):
        assert text in shown
    assert "Xid" not in shown, "what is not told is not shown"
    assert panel.get_by_role("listitem").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("window.draw(null)")
    assert panel.count() == 0
