"""opacus: one step of its DP-SGD on a linear model, loss −w·x, so that a record's gradient is the record itself."""

import sys

import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from speak import each, speak

NORM, NOISE = 1.0, 2.0
grid = 2**10 if sys.argv[1:] == ["rounded"] else None
secure = sys.argv[1:] == ["secure"]


def draw(x):
    model = GradSampleModule(torch.nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model._module.weight.zero_()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = DPOptimizer(
        sgd, noise_multiplier=NOISE, max_grad_norm=NORM, expected_batch_size=1, loss_reduction="sum", secure_mode=secure
    )
    (-model(torch.tensor(x))).sum().backward()
    optimizer.step()
    y = model._module.weight.detach()[0].double()
    return (torch.round(y * grid) / grid if grid else y).tolist()


inputs = {"records": {"radius": 10.0, "size": 2}, "count": 3}
speak({"mu": 1 / NOISE, "delta": 1e-5, "inputs": inputs, "neighbours": "add-remove", "releases": "vector"}, each(draw))
