# Sourced in the checkout's root on the GPU host: SITE is the folder SGLang was unpacked to.
here=bench/gpu
[ -f "$SITE/flash_mla/stand_in" ] || {
  cp -r "$here"/stand_ins/. "$SITE"/
  touch "$SITE/flash_mla/stand_in"
  info="$SITE/spec_fsm-0.1.0.dist-info"
  mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: spec-fsm\nVersion: 0.1.0\n' >"$info/METADATA"
  printf '[sglang.srt.plugins]\nspec_fsm = spec_fsm_sglang.plugin:activate\n' >"$info/entry_points.txt"
}
[ -n "${FLASH_OPS:-}" ] && [ ! -f "$SITE/sgl_kernel/flash_ops.abi3.so" ] &&
  xz -dc "$FLASH_OPS" >"$SITE/sgl_kernel/flash_ops.abi3.so"
export PYTHONPATH="$SITE:$PWD:$PWD/adapters:$PWD/model" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
export SGLANG_ENABLE_JIT_DEEPGEMM=0 SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1
export SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python SGLANG_USE_SGL_FA3_KERNEL=1
