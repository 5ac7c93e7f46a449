"""Every entry of the catalogue with every value that it declares for tests, and inputs for it."""

import pytest
from scipy import stats

from mechanisms.catalogue import CATALOGUE, OWN_KINDS
from sottovoce.contracts import cases
from sottovoce.contracts.cases import inputs as inputs
from sottovoce.contracts.cases import streams as streams
from sottovoce.contracts.cases import unit as unit

ALARM = 1e-6


def instances():
    for kind in (*CATALOGUE.values(), *(kind for (_, channel), kind in OWN_KINDS.items() if channel != "text")):
        for shown, mechanism in cases.instances(kind):
            yield pytest.param(mechanism, id=shown)


every_mechanism = pytest.mark.parametrize("mechanism", list(instances()))


def fits(values, distribution):
    return stats.kstest(values, distribution).pvalue > ALARM
