"""Which parameters weight decay applies to."""

from torch import nn


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Return two optimizer groups, the first with `weight_decay` and the second without.

    The first holds the weights of linear layers, convolutions and embeddings, the second all other parameters: biases,
    and gains and scales of norms and layers. Every parameter that requires a gradient is in exactly one group. Groups
    follow the modules' types, so that renaming a layer cannot change what decays.

    The published run decided by names, and so decayed gains and scales, too.
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
