"""Schemas follow from annotations; values go in one by one and come back as they were."""

from torchcaps.routing.ops.em import EM, EmInputs, EmKernelOptions
from torchcaps.routing.ops.operator import fields, flatten, rebuild
from torchcaps.routing.ops.softmax import SOFTMAX, SoftmaxInputs, SoftmaxOptions
from torchcaps.routing.ops.votes import KernelVotes

VOTES = (
    "Tensor poses, Tensor weight, Tensor? bias, Tensor? activations, Tensor? offset, Tensor? child, Tensor? transform, "
    "Tensor? child_mask, Tensor? window_mask, SymInt rows"
)


def test_schemas_have_room_for_every_input():
    schema = str(SOFTMAX.forward._opoverload._schema)
    assert VOTES in schema
    assert "Tensor? partial, Tensor? initial_logits" in schema
    assert "float[] inverse_temperatures" in schema
    assert VOTES in str(EM.backward._opoverload._schema)
    assert "Tensor? grad_poses, Tensor? grad_activations, Tensor? grad_logits, Tensor state, bool[] wanted" in str(
        EM.backward._opoverload._schema
    )


def test_what_is_flattened_is_rebuilt():
    votes = KernelVotes("poses", "weight", None, None, None, None, None, None, None, 1)
    for inputs in (
        SoftmaxInputs(votes, None, None, SoftmaxOptions(3, 2, alphas=(0.1, 0.2))),
        EmInputs(votes, "a", "u", None, None, None, EmKernelOptions(2, 1, [1.0], [1.0], 0.1, 0.5, True, False, [])),
    ):
        values = flatten(inputs)
        assert len(values) == len(list(fields(type(inputs))))
        assert rebuild(type(inputs), iter(values)) == inputs
