"""Every kind of votes against the loops; masks, narrowing, and what is said when something is wrong."""

import pytest
import torch

from support.cases import class_case, conv_case, dense_case, rand, randn, random_mask, tensor_case
from torchcaps.capsules import Capsules
from torchcaps.votes import ClassVotes, ConvVotes, DenseVotes, TensorVotes, as_votes

MAKERS = {
    "dense": dense_case,
    "conv1d": lambda **options: conv_case(spatial=(7,), kernel=(3,), stride=(2,), **options),
    "conv1d, stride 1": lambda **options: conv_case(spatial=(5,), kernel=(2,), stride=(1,), **options),
    "conv2d": conv_case,
    "class1d": lambda **options: class_case(spatial=(5,), **options),
    "class2d": class_case,
    "class, no coordinates": lambda **options: class_case(coordinates=False, **options),
}


def formed(case):
    """The votes of the loops in the shape of the library's, 0 where a child is masked."""
    field = case.field()
    votes = torch.as_tensor(field.votes)
    for b, s, n, j in torch.cartesian_prod(*(torch.arange(size) for size in votes.shape[:4])).tolist():
        if not field.exists(b, s, n, j):
            votes[b, s, n, j] = 0
    return votes.reshape(votes.shape[0], *case.positions, *votes.shape[2:])


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("sharing", ["full", "shared", "factorised"])
@pytest.mark.parametrize("pose", ["vector", "matrix"])
@pytest.mark.parametrize("name", MAKERS)
def test_votes(name, pose, sharing, bias):
    case = MAKERS[name](pose=pose, sharing=sharing, bias=bias)
    votes = case.votes()
    expected = formed(case)
    torch.testing.assert_close(votes.materialise(), expected)
    assert votes.coupling_shape == expected.shape[:-1]
    assert votes.vote_size == expected.shape[-1]
    assert votes.positions == case.positions


@pytest.mark.parametrize("sharing", ["full", "shared", "factorised"])
@pytest.mark.parametrize("name", MAKERS)
def test_votes_of_masked_children_are_zero(name, sharing):
    case = MAKERS[name](sharing=sharing, mask=True)
    torch.testing.assert_close(case.votes().materialise(), formed(case))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 7, 1), (1, 1, 7), (2, 63, 3)], ids=str)
@pytest.mark.parametrize("sharing", ["full", "shared", "factorised"])
def test_odd_sizes(sizes, sharing):
    batch_size, num_children, num_parents = sizes
    case = dense_case(batch_size=batch_size, num_children=num_children, num_parents=num_parents, sharing=sharing)
    torch.testing.assert_close(case.votes().materialise(), formed(case))


def test_matrix_votes_are_pose_times_weight():
    pose, weight = randn(4, 4), randn(4, 4)
    votes = DenseVotes(pose.view(1, 1, 16), weight.view(1, 1, 4, 4), pose="matrix").materialise()
    torch.testing.assert_close(votes.view(4, 4), pose @ weight)


def test_coordinates_of_a_four_by_four_pose():
    votes = ClassVotes(torch.zeros(1, 5, 3, 1, 16), torch.zeros(1, 2, 4, 4), pose="matrix").materialise()
    for row in range(5):
        for column in range(3):
            vote = votes[0, row * 3 + column, 1]
            torch.testing.assert_close(vote[[3, 7]], torch.tensor([(row + 0.5) / 5, (column + 0.5) / 3]))
            assert vote.count_nonzero() == 2


@pytest.mark.parametrize(("coordinates", "scale"), [(True, 1.0), (0.1, 0.1), (0.0, 0.0), (False, 0.0)])
def test_coordinates_may_be_scaled(coordinates, scale):
    full, scaled = (
        ClassVotes(torch.zeros(1, 5, 3, 1, 16), torch.zeros(1, 2, 4, 4), pose="matrix", coordinates=given).materialise()
        for given in (True, coordinates)
    )
    torch.testing.assert_close(scaled, scale * full)
    with pytest.raises(ValueError, match="coordinates must be True, False or a finite scale, got nan"):
        ClassVotes(torch.zeros(1, 5, 3, 1, 2), torch.zeros(1, 2, 2, 6), coordinates=float("nan"))


def test_coordinates_of_a_vector_pose():
    votes = ClassVotes(torch.zeros(1, 5, 3, 1, 2), torch.zeros(1, 2, 2, 6)).materialise()
    torch.testing.assert_close(votes[0, 3 * 4 + 2, 0], torch.tensor([4.5 / 5, 2.5 / 3, 0, 0, 0, 0]))


def test_children_of_one_type_share_their_transformation():
    votes = ClassVotes(torch.ones(1, 3, 3, 2, 4), randn(2, 3, 4, 5).float(), coordinates=False).materialise()
    assert torch.equal(votes[:, 0::2], votes[:, :1].expand(1, 9, 3, 5))
    assert not torch.equal(votes[:, 0], votes[:, 1])


@pytest.mark.parametrize("name", MAKERS)
def test_padding_may_hold_nan(name):
    """Values and gradients are those of any other padding."""
    case = MAKERS[name](mask=True)
    padding = ~case.mask
    poses = case.leaves["poses"].clone()
    poses[padding] = torch.nan
    leaves = case.leaves | {"poses": poses}
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
    votes = case.votes(**leaves).materialise()
    torch.testing.assert_close(votes, case.votes().materialise())
    (votes * randn(*votes.shape)).sum().backward()
    for name in ("poses", "weight", "bias"):
        assert leaves[name].grad.isfinite().all(), name
    assert (leaves["poses"].grad[padding] == 0).all()


def test_padding_of_plain_votes_may_hold_nan():
    votes, mask = randn(2, 7, 3, 4), random_mask(2, 7)
    expected = torch.where(mask[..., None, None], votes, 0.0)
    votes[~mask] = torch.nan
    votes.requires_grad_()
    formed = as_votes(votes, mask=mask).materialise()
    assert torch.equal(formed, expected)
    formed.square().sum().backward()
    assert torch.equal(votes.grad, 2 * expected)


def test_weights_of_padding_are_zero():
    activations, mask = rand(2, 7), random_mask(2, 7)
    expected = torch.where(mask, activations, 0.0)
    activations[~mask] = torch.nan
    assert torch.equal(as_votes(randn(2, 7, 3, 4), activations=activations, mask=mask).child_weights(), expected)
    assert torch.equal(as_votes(randn(2, 7, 3, 4), activations=expected).child_weights(), expected)


@pytest.mark.parametrize("name", [*MAKERS, "plain"])
def test_narrow(name):
    if name == "plain":
        votes = as_votes(tensor_case((5, 7, 3, 4)).votes(), activations=rand(5, 7), mask=random_mask(5, 7))
    else:
        windows = {"window_mask": True} if name.startswith("conv") else {}
        votes = MAKERS[name](batch_size=5, mask=True, **windows).votes()
    part = votes.narrow(1, 3)
    torch.testing.assert_close(part.materialise(), votes.materialise()[1:4], rtol=1e-12, atol=1e-14)
    assert torch.equal(part.activations, votes.activations[1:4])
    assert torch.equal(part.mask, votes.mask[1:4])
    assert torch.equal(part.slot_mask(), votes.slot_mask()[1:4])
    assert part.coupling_shape == (3, *votes.coupling_shape[1:])


def test_slots_and_windows_that_do_not_exist():
    case = conv_case(mask=True, window_mask=True)
    field, slot_mask = case.field(), case.votes().slot_mask()
    flat = slot_mask.reshape(*field.sizes[:3])
    for b, s, n in torch.cartesian_prod(*(torch.arange(size) for size in field.sizes[:3])).tolist():
        assert flat[b, s, n] == field.exists(b, s, n, 0)
    only_windows = conv_case(window_mask=True)
    slot_mask = only_windows.votes().slot_mask()
    assert torch.equal(slot_mask, only_windows.window_mask.unsqueeze(-1).expand_as(slot_mask))
    assert conv_case().votes().slot_mask() is None


@pytest.mark.parametrize("axes", ["positions", "children"])
def test_masks_of_feature_maps(axes):
    poses, weight = randn(2, 6, 4, 2, 3), randn(3, 3, 2, 2, 3, 4)
    mask = random_mask(2, 6, 4) if axes == "positions" else random_mask(2, 6, 4, 2)
    of_children = mask[..., None].expand(2, 6, 4, 2) if axes == "positions" else mask
    for votes in (ConvVotes(poses, weight, mask=mask), ClassVotes(poses, weight[0, 0], mask=mask)):
        assert torch.equal(votes.mask, of_children.flatten(1))


def test_activations_and_mask_come_from_the_call_or_the_description():
    case = dense_case(mask=True)
    bare = DenseVotes(case.leaves["poses"], case.leaves["weight"], bias=case.leaves["bias"])
    given = as_votes(bare, activations=case.leaves["activations"], mask=case.mask)
    assert torch.equal(given.materialise(), case.votes().materialise())
    assert torch.equal(given.activations, case.leaves["activations"])
    assert torch.equal(given.mask, case.mask)
    assert as_votes(bare) is bare
    with pytest.raises(ValueError, match="activations are already part of the votes; leave them out of the call"):
        as_votes(given, activations=case.leaves["activations"])
    with pytest.raises(ValueError, match="the mask is already part of the votes; leave it out of the call"):
        as_votes(given, mask=case.mask)
    plain = TensorVotes(randn(2, 5, 3, 4), activations=rand(2, 5))
    with pytest.raises(ValueError, match="activations are already part of the votes"):
        plain.given(activations=rand(2, 5), mask=None)


@pytest.mark.parametrize("name", ["dense", "conv1d", "class2d"])
@pytest.mark.parametrize("sharing", ["full", "factorised"])
def test_gradients(name, sharing):
    case = MAKERS[name](batch_size=1, sharing=sharing, mask=True)
    names = [name for name in case.leaves if name != "activations"]

    def form(*leaves):
        return case.votes(**dict(zip(names, leaves))).materialise()

    leaves = [case.leaves[name].clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(form, leaves, fast_mode=True)


POSES, WEIGHT = torch.zeros(2, 5, 3), torch.zeros(5, 4, 3, 6)
MAP, KERNEL = torch.zeros(2, 6, 6, 2, 4), torch.zeros(3, 3, 2, 5, 4, 7)

WRONG = {
    "pose": (
        lambda: DenseVotes(POSES, WEIGHT, pose="vectors"),
        r"pose must be one of 'vector', 'matrix', got 'vectors'; did you mean 'vector'\?",
    ),
    "sharing": (
        lambda: DenseVotes(POSES, WEIGHT, sharing="factorized"),
        r"sharing must be one of 'full', 'shared', 'factorised', got 'factorized'; did you mean 'factorised'\?",
    ),
    "weights of a kernel": (lambda: ConvVotes(MAP, KERNEL, sharing="ful"), "sharing must be one of .*, got 'ful'"),
    "axes of full": (
        lambda: DenseVotes(POSES, WEIGHT[0]),
        r"full weight must have shape \(I, J, K, D\), got \(4, 3, 6\)",
    ),
    "axes of shared": (
        lambda: DenseVotes(POSES, WEIGHT, sharing="shared"),
        r"shared weight must have shape \(J, K, D\), got \(5, 4, 3, 6\)",
    ),
    "children": (
        lambda: DenseVotes(POSES[:, :4], WEIGHT),
        r"weight must have shape \(I, J, K, D\) = \(4, 4, 3, 6\), got \(5, 4, 3, 6\)",
    ),
    "pose size": (
        lambda: DenseVotes(POSES[..., :2], WEIGHT),
        r"weight must have shape \(I, J, K, D\) = \(5, 4, 2, 6\), got \(5, 4, 3, 6\)",
    ),
    "factor": (
        lambda: DenseVotes(POSES, (torch.zeros(4, 3, 2), torch.zeros(4, 2, 6)), sharing="factorised"),
        r"child factor must have shape \(I, K, K'\) = \(5, 3, 2\), got \(4, 3, 2\)",
    ),
    "inner size": (
        lambda: DenseVotes(POSES, (torch.zeros(5, 3, 2), torch.zeros(4, 3, 6)), sharing="factorised"),
        r"weight must have shape \(J, K, D\) = \(4, 2, 6\), got \(4, 3, 6\)",
    ),
    "square pose": (lambda: DenseVotes(POSES, WEIGHT, pose="matrix"), "needs a square number of entries.*got 3"),
    "square weight": (
        lambda: DenseVotes(torch.zeros(2, 5, 4), torch.zeros(5, 4, 2, 3), pose="matrix"),
        "matrix poses of 4 entries need 2 x 2 weights, got 2 x 3",
    ),
    "bias": (
        lambda: DenseVotes(POSES, WEIGHT, bias=torch.zeros(4, 6)),
        r"bias must have shape \(I, J, D\) = \(5, 4, 6\), got \(4, 6\)",
    ),
    "mask shape": (
        lambda: DenseVotes(POSES, WEIGHT, mask=torch.ones(2, 4, dtype=torch.bool)),
        r"mask must have shape \(B, I\) = \(2, 5\), got \(2, 4\)",
    ),
    "activations": (
        lambda: DenseVotes(Capsules(POSES, torch.zeros(2, 4)), WEIGHT),
        r"without the last axis, \(2, 5\), got \(2, 4\)",
    ),
    "kernel size": (
        lambda: ConvVotes(MAP, torch.zeros(5, 4, 7), sharing="shared"),
        "shared weights do not show the kernel size; give kernel_size",
    ),
    "kernel too large": (
        lambda: ConvVotes(MAP[:, :2], KERNEL),
        r"a window of \(3, 3\) does not fit into a map of \(2, 6\); use a smaller kernel or a larger input",
    ),
    "kernel against weight": (
        lambda: ConvVotes(MAP, KERNEL, kernel_size=2),
        r"weight must have shape \(kernel..., C, J, K, D\) = \(2, 2, 2, 5, 4, 7\), got \(3, 3, 2, 5, 4, 7\)",
    ),
    "stride": (lambda: ConvVotes(MAP, KERNEL, stride=0), "stride must be a positive integer or 2 of them, got 0"),
    "map": (
        lambda: ConvVotes(POSES, KERNEL),
        r"must have shape \(B, H, W, C, K\) or \(B, T, C, K\), got \(2, 5, 3\)",
    ),
    "window mask": (
        lambda: ConvVotes(MAP, KERNEL, window_mask=torch.ones(2, 3, 4, dtype=torch.bool)),
        r"window_mask must have shape \(B, \*positions\) = \(2, 4, 4\), got \(2, 3, 4\)",
    ),
    "mask of a map": (
        lambda: ConvVotes(MAP, KERNEL, mask=torch.ones(2, 6, dtype=torch.bool)),
        r"mask must have shape of positions or of children = \(2, 6, 6, 2\), got \(2, 6\)",
    ),
    "coordinates": (
        lambda: ClassVotes(MAP, torch.zeros(2, 3, 4, 1)),
        "coordinate addition needs larger votes than 1; set coordinates=False",
    ),
    "plain votes": (
        lambda: as_votes(torch.zeros(2, 3, 4)),
        r"votes must have shape \(B, I, J, D\) .* got \(2, 3, 4\); a convolutional layer is described by ConvVotes",
    ),
    "no parents": (lambda: as_votes(torch.zeros(2, 3, 0, 4)), r"I, J, D of at least 1, got \(2, 3, 0, 4\)"),
}

WRONG_TYPES = {
    "mask": (
        lambda: DenseVotes(POSES, WEIGHT, mask=torch.ones(2, 5)),
        r"mask must be a boolean tensor \(True = takes part\), got torch.float32; convert it with .bool\(\)",
    ),
    "weight dtype": (
        lambda: DenseVotes(POSES, WEIGHT.double()),
        r"weight has dtype torch.float64 but poses has torch.float32; convert one of them with .to\(dtype\)",
    ),
    "bias dtype": (
        lambda: DenseVotes(POSES, WEIGHT, bias=torch.zeros(5, 4, 6).double()),
        "bias has dtype torch.float64 but poses has torch.float32",
    ),
    "factor dtype": (
        lambda: DenseVotes(POSES, (torch.zeros(5, 3, 2).double(), torch.zeros(4, 2, 6)), sharing="factorised"),
        "child factor has dtype torch.float64 but poses has torch.float32",
    ),
    "integer weight": (lambda: DenseVotes(POSES, WEIGHT.long()), "weight must be floating point, got torch.int64"),
    "integer poses": (lambda: DenseVotes(POSES.long(), WEIGHT), "poses must be floating point, got torch.int64"),
    "no pair": (
        lambda: DenseVotes(POSES, WEIGHT, sharing="factorised"),
        r"factorised weights are a pair \(one factor per child, one per parent\)",
    ),
    "pair": (lambda: DenseVotes(POSES, (WEIGHT, WEIGHT)), "full weights are one tensor, got tuple"),
    "pair of kernels": (lambda: ConvVotes(MAP, (KERNEL, KERNEL)), "full weights are one tensor, got tuple"),
    "no pair of kernels": (lambda: ConvVotes(MAP, KERNEL, sharing="factorised"), "factorised weights are a pair"),
    "list": (lambda: as_votes([1.0]), r"votes must be a tensor \(B, I, J, D\) or a description .* got list"),
    "activations dtype": (
        lambda: as_votes(torch.zeros(2, 5, 3, 4), activations=torch.zeros(2, 5).double()),
        "activations has dtype torch.float64 but votes has torch.float32",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values(name):
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_wrong_types(name):
    make, message = WRONG_TYPES[name]
    with pytest.raises(TypeError, match=message):
        make()
