// Words that all pages share, in each language.

const en = {
  theme: "Light, dark, or the system's theme",
  theme_auto: "system",
  theme_light: "light",
  theme_dark: "dark",
  language: "Language",
  layers_heads: "{layers} layers × {heads} heads",
  save: "Save",
  saved: "{name} was saved.",
  tokens: "{n} tokens",
} as const;

const ja: Record<keyof typeof en, string> = {
  theme: "ライト・ダーク・システムに合わせる",
  theme_auto: "システム",
  theme_light: "ライト",
  theme_dark: "ダーク",
  language: "言語",
  layers_heads: "{layers} 層 × {heads} ヘッド",
  save: "保存",
  saved: "{name} を保存しました。",
  tokens: "{n} トークン",
};

const zh: Record<keyof typeof en, string> = {
  theme: "浅色、深色或跟随系统",
  theme_auto: "跟随系统",
  theme_light: "浅色",
  theme_dark: "深色",
  language: "语言",
  layers_heads: "{layers} 层 × {heads} 头",
  save: "保存",
  saved: "已保存 {name}。",
  tokens: "{n} 个词元",
};

export const common = { en, ja, zh };
