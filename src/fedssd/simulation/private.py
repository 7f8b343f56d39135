"""A run under differential privacy: what it refuses, where its noise goes in, and what of a round is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import sqrt
from typing import TYPE_CHECKING

import torch

from fedssd.core import tree
from fedssd.core.contract import Method, Server, Work, parts_of, uploads_weights
from fedssd.core.engine import Job, Trained
from fedssd.core.randomness import sample_cohort
from fedssd.core.round import Rounds
from fedssd.core.tree import Tree
from fedssd.errors import UserError
from fedssd.methods.dry_run import SampleForm, reports_beside
from fedssd.privacy.accounting import gaussian_epsilon, noise_for
from fedssd.privacy.ledger import Ledger
from fedssd.privacy.noise import fresh_seed, noised, released
from fedssd.privacy.terms import MODES, Terms
from fedssd.recipe import Recipe

if TYPE_CHECKING:
    from fedssd.simulation.result import Round
    from fedssd.simulation.setup import Setup
    from fedssd.simulation.simulation import Run

LEAST_NOISE = 1e-3  # clips: below, ε is beyond 500,000


def terms_of(recipe: Recipe, cohort: int) -> Terms:
    """What a recipe promises; UserError where it does not say it, or where one round would already pass its budget."""
    mode, noise, epsilon, delta = (getattr(recipe, f"privacy_{name}") for name in ("mode", "noise", "epsilon", "delta"))
    if (noise > 0) == (epsilon > 0):
        given = f"noise = {noise:g}, epsilon = {epsilon:g}"
        raise UserError(f"privacy expects either noise (in clips) or epsilon (of the whole run), got {given}")
    if recipe.on_bad_update != "drop":
        raise UserError(f"privacy needs on_bad_update = drop, got {recipe.on_bad_update}: stop tells of a single reply")
    if recipe.auxiliary > 0 and recipe.auxiliary_mode == "shared":
        raise UserError("privacy needs auxiliary_mode = heldout: shared samples are clients', and get no noise")
    if epsilon > 0:
        rounds = most_rounds(islice(cohorts(recipe, cohort), recipe.rounds), recipe.clients)
        noise = noise_for(epsilon, delta, MODES[mode][1] * sqrt(rounds))
    if noise < LEAST_NOISE:
        raise UserError(f"privacy expects noise of at least {LEAST_NOISE:g} clips, got {noise:g}: less hides nothing")
    terms = Terms(mode, recipe.privacy_clip, noise, delta, recipe.privacy_budget, recipe.privacy_test_seed)
    once = gaussian_epsilon(terms.mu, delta)
    if terms.budget and once > terms.budget:
        raise UserError(f"privacy: one round costs ε = {once:.4g}, and the budget is {terms.budget:g}: more noise")
    return terms


def cohorts(recipe: Recipe, size: int, first: int = 0) -> Iterator[Sequence[int]]:
    """Who takes part in the rounds from ``first`` on, as the seed says."""
    while True:
        yield sample_cohort(recipe.seed, first, recipe.clients, size)
        first += 1


def most_rounds(chosen: Iterator[Sequence[int]], clients: int) -> int:
    """The rounds of the client that is chosen most."""
    counts = [0] * clients
    for cohort in chosen:
        for client in cohort:
            counts[client] += 1
    return max(counts)


def refuse_unbounded(method: Method, rounds: Rounds, form: SampleForm) -> None:
    """Raise UserError for a method of which more goes up than weights, or whose server does more than average them."""
    for part in parts_of(method.local):
        if not part.shares_weights or not uploads_weights(part):
            raise UserError(f"privacy bounds weights, and {part.name!r} sends others: {part.tells_up}")
        if reports_beside(part, form):
            raise UserError(f"privacy bounds weights, and what {part.name!r} sends has no bound: {part.tells_up}")
    if type(method.server) is not Server:
        raise UserError(
            f"privacy needs server half 'fedavg', got {method.server.name!r}: only of a mean is it known how far one "
            "client can move it"
        )
    if rounds.has_batch_norm:
        raise UserError("privacy does not go with batch norm: noise would make its running variances negative")
    if len(rounds.nets) > 1:
        raise UserError("privacy needs one model for all clients")


def sent_by_clients(terms: Terms, job: Job, trained: Trained) -> Trained:
    """What the clients send: with local privacy weights that are clipped and noised, each counting alike."""
    if terms.mode != "local":
        return trained
    uploads = [
        send(terms, job.sent["weights"], tree.row(trained.got, place), job.round, client)
        for place, client in enumerate(job.clients)
    ]
    return trained._replace(got=tree.stack(uploads), work=alike(trained.work))


def send(terms: Terms, sent: Tree, got: Tree, round_: int, client: int) -> Tree:
    """What one client sends under local privacy."""
    seed = fresh_seed(terms.test_seed, round_, client)
    return with_params(sent, noised(sent["params"], got["params"], terms.clip, terms.noise * terms.clip, seed))


def with_params(sent: Tree, params: Tree) -> Tree:
    """Weights with these parameters; buffers stay as they were sent, so that nothing of a client is in them."""
    return {"params": params, "buffers": sent["buffers"]}


def refuse_other_terms(own: Setup, asked: Setup) -> None:
    """Raise UserError where a run asks a client for another privacy than the app it has approved promises."""
    found = [one.terms and replace(one.terms, budget=0.0) for one in (own, asked)]  # which the server keeps
    if found[0] != found[1]:
        raise UserError(f"run-config set changes the privacy that the app promises: {found[0]} to {found[1]}")


def blank(figures: Tree) -> Tree:
    """Figures that tell nothing: a client of local privacy says only that it trained."""
    return {name: torch.full_like(value, float(name == "count")) for name, value in figures.items()}


def alike(work: Work) -> Work:
    """The work with one sample a client, so that all count the same."""
    return work._replace(samples=torch.ones_like(work.samples))


def pooled(terms: Terms, job: Job, trained: Trained, cohort: int) -> Trained:
    """The replies of a round as one: the weights that are released. There always is one, also where nobody replied."""
    one = torch.ones_like(tree.leaves(job.sent["weights"]["params"])[0].flatten()[:1], dtype=torch.float64)
    clip, seed, sent = terms.clip, fresh_seed(terms.test_seed, job.round), job.sent["weights"]
    params = released(sent["params"], trained.got["params"], clip, terms.noise * clip, cohort, seed)
    weights = with_params(sent, params)
    got = tree.map_tree(lambda leaf: leaf[None], weights)
    nothing = tree.map_tree(lambda leaf: leaf.new_zeros((1, *leaf.shape[1:])), trained.reports)
    return Trained(got, got, {}, nothing, Work(one, one, one), {})


def charge(run: Run, job: Job) -> None:
    """Count a round as released, before it is; not one that is trained only for the rounding of runs beside it."""
    if run.ledger is not None and not run.failed and not run.ended:
        run.ledger.charge(job.clients)


def recorded(one: Round, ledger: Ledger) -> Round:
    """What of a round is written down: what has been spent, and nothing that tells of single clients."""
    unchanged = one.unchanged if one.unchanged == "rolled back" or ledger.terms.mode == "local" else ""
    return replace(one, drift=None, distillation={}, seconds={}, unchanged=unchanged, privacy=ledger.spent())


def rounds_left(run: Run) -> int:
    """How many rounds there are to come, or fewer that a privacy budget allows."""
    recipe, done = run.federation.recipe, run.state.round
    left = max(0, recipe.rounds - done)
    return left if run.ledger is None else run.ledger.affordable(islice(cohorts(recipe, run.cohort, done), left))


def ended(run: Run) -> str:
    """Why there is no further round, if the budget allows none."""
    recipe, done = run.federation.recipe, len(run.rounds)
    if run.ledger is None or done >= recipe.rounds:
        return ""
    if run.ledger.affordable(islice(cohorts(recipe, run.cohort, done), 1)):
        return ""
    budget, spent = run.ledger.terms.budget, run.ledger.spent().epsilon
    return f"the next round would pass the privacy budget of ε = {budget:g}, of which {spent:.4g} is spent"
