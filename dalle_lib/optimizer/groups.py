"""Which parameters decay."""

from torch import nn


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Return two optimizer groups: weights of linear layers, which decay, and all else (norms, scales, biases).

    Groups follow the modules' types, so a renamed layer cannot change what decays. Every parameter that requires a
    gradient is in exactly one group.
    """
    decayed = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv2d) and module.weight.requires_grad
    }
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if id(p) in decayed], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
    ]
