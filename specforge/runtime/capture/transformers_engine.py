"""In: documents. Out: the target's hidden states of each, from a forward pass in this process.

Layer id i is the OUTPUT of decoder layer i, counted from 0, before any norm: Hugging Face's hidden_states[i + 1].
The LM head is never computed. Legend: B documents, S tokens of the longest, R tokens of all, T tokens of one,
C captured width (layers side by side), H target hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import attrs
import numpy as np
import torch

from specforge.runtime.capture.apart import documents_apart, unknown_layers
from specforge.runtime.data.batch import Features, upload
from specforge.runtime.data.pack import Document
from specforge.runtime.target import TargetModel
from specforge.settings import CaptureSettings

# The probe: a document behind another one against the same document alone, relative to its norm. Rounding differs by
# some units of the dtype's precision; a document that sees another differs by tenths.
PROBE_LENGTHS = (24, 17)
PROBE_TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 2e-2}


class TransformersEngine:
    """Captures in process. Raises ValueError for a layer that the target does not have.

    With `settings.packed`, documents of a forward are laid end to end, where a probe finds that this target then keeps
    them apart. Else, and without it, they are padded on the right; `note` says why a target is not captured packed.
    """

    def __init__(self, target: TargetModel, settings: CaptureSettings) -> None:
        self._target = target
        self._settings = settings
        self._decoder = target.decoder
        self._dtype = getattr(torch, settings.dtype)
        count = len(self._decoder.layers)
        wrong = [i for i in settings.layers if not 0 <= i < count]
        if wrong:
            raise ValueError(
                f"capture of {target.settings.name}: it has layers 0 to {count - 1}, not {', '.join(map(str, wrong))}. "
                "Correct the layers of the policy."
            )
        reason = self._mixes() if settings.packed else None
        self.packed = settings.packed and reason is None
        self.note = f"{target.settings.name} is captured in padded batches: {reason}" if reason else ""

    def capture(self, documents: Sequence[Document]) -> list[Features]:
        """One forward of the documents; features are cut per document and own their memory.

        They are in the settings' dtype on the target's device; `aux_TC` has no columns without layers, and `last_TH`
        none where the settings want no last hidden state. The same documents in the same batch give the same bits.
        Raises ValueError for empty documents, for ids outside the vocabulary and for a short read.
        """
        lengths = [self._checked_length(document) for document in documents]
        tokens = [document.tokens for document in documents]
        return self._packed(tokens, lengths) if self.packed else self._padded(tokens, lengths)

    def _padded(self, tokens: Sequence[np.ndarray], lengths: list[int]) -> list[Features]:
        tokens_BS = np.zeros((len(tokens), max(lengths)), dtype=np.int64)
        for row, length in enumerate(lengths):
            tokens_BS[row, :length] = tokens[row]
        # Padding stands at the right, where causal attention never looks: without a mask the fast kernels apply.
        aux, last_BSH = self._forward(tokens_BS)
        return [
            self._owned([out_BSH[row, :length] for out_BSH in aux], last_BSH[row, :length])
            for row, length in enumerate(lengths)
        ]

    def _packed(self, tokens: Sequence[np.ndarray], lengths: list[int]) -> list[Features]:
        tokens_1R = np.concatenate(tokens).astype(np.int64)[None]
        aux, last_1RH = self._forward(tokens_1R, lengths)
        parts = [out_1RH[0].split(lengths) for out_1RH in (*aux, last_1RH)]
        return [self._owned(list(document[:-1]), document[-1]) for document in zip(*parts, strict=True)]

    def _forward(
        self, tokens_BS: np.ndarray, lengths: list[int] | None = None
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The wanted layers' outputs and the last hidden state, [B, S, H] each; `lengths`: of documents in one row."""
        device, given = self._target.device, {}
        if lengths is not None:
            positions_1R = np.concatenate([np.arange(n) for n in lengths])[None]
            given = {"position_ids": upload(positions_1R, device), "document_lengths": lengths}
        attention = nullcontext() if lengths is None else documents_apart(self._target.model)
        # no_grad, not inference_mode: a step saves the features for its backward, which inference tensors refuse.
        with torch.no_grad(), attention, self._outputs() as outputs:
            last_BSH = self._decoder(input_ids=upload(tokens_BS, device), use_cache=False, **given).last_hidden_state
        aux = [outputs[layer] for layer in self._settings.layers]
        for read_BSH in (*aux, last_BSH):
            if read_BSH.shape[:2] != tokens_BS.shape:
                raise ValueError(
                    f"capture of {self._target.settings.name}: asked for rows {tokens_BS.shape}, "
                    f"read {tuple(read_BSH.shape[:2])}. Capture with another engine or transformers version."
                )
        return aux, last_BSH

    def _owned(self, aux: list[torch.Tensor], last_TH: torch.Tensor) -> Features:
        length, width = last_TH.shape
        aux_TC = torch.empty(length, len(aux) * width, dtype=self._dtype, device=last_TH.device)
        for i, out_TH in enumerate(aux):
            aux_TC[:, i * width : (i + 1) * width] = out_TH
        kept_TH = torch.empty(length, width * self._settings.last_hidden, dtype=self._dtype, device=last_TH.device)
        if self._settings.last_hidden:
            kept_TH.copy_(last_TH)
        return Features(aux_TC=aux_TC, last_TH=kept_TH)

    def _mixes(self) -> str | None:
        """Why documents laid end to end would not give what each gives alone; None where they do."""
        target = self._target
        if unknown := unknown_layers(getattr(target.model.config.get_text_config(), "layer_types", None)):
            return f"it has layers of {', '.join(unknown)}, which packed capture does not know"
        chance = np.random.default_rng(0)
        tokens = [chance.integers(0, target.settings.geometry.vocab_size, n) for n in PROBE_LENGTHS]
        whole = attrs.evolve(self._settings, last_hidden=True)
        settings, self._settings = self._settings, whole
        try:
            packed = self._packed(tokens, list(PROBE_LENGTHS))[1]
            (alone,) = self._padded(tokens[1:], list(PROBE_LENGTHS[1:]))
        except (TypeError, ValueError, KeyError) as error:
            return f"its attention cannot be replaced ({error})"
        finally:
            self._settings = settings
        pairs = ((packed.aux_TC, alone.aux_TC), (packed.last_TH, alone.last_TH))
        differing = max(_relative(one, other) for one, other in pairs if one.numel())
        allowed = PROBE_TOLERANCE[str(target.model.dtype).removeprefix("torch.")]
        if differing <= allowed:
            return None
        return (
            f"a document behind another differs from the same one alone by {differing:.2g} of its norm, "
            f"{allowed:g} is rounding"
        )

    def _checked_length(self, document: Document) -> int:
        tokens, vocabulary = document.tokens, self._target.settings.geometry.vocab_size
        if len(tokens) == 0:
            raise ValueError(f"document {document.index} has no tokens. Drop empty rows from the source.")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= vocabulary:
            raise ValueError(
                f"document {document.index} has token ids from {low} to {high}, but {self._target.settings.name} has "
                f"{vocabulary}. Tokenise the source with the target's own tokenizer."
            )
        return len(tokens)

    @contextmanager
    def _outputs(self) -> Iterator[dict[int, torch.Tensor]]:
        """The outputs of the wanted layers by id, filled by hooks that are there only inside the block."""
        outputs: dict[int, torch.Tensor] = {}

        def keep(layer: int):
            def hook(module: torch.nn.Module, args: object, out: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
                outputs[layer] = out if isinstance(out, torch.Tensor) else out[0]  # a tuple in older transformers

            return hook

        hooks = [self._decoder.layers[i].register_forward_hook(keep(i)) for i in set(self._settings.layers)]
        try:
            yield outputs
        finally:
            for hook in hooks:
                hook.remove()


def _relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm().clamp(min=1e-30))
