// Words that all pages share, in English, Japanese and Chinese.
import type { Said } from "./speech";

export const common = {
  theme: ["Light, dark, or the system's theme", "ライト・ダーク・システムに合わせる", "浅色、深色或跟随系统"],
  theme_auto: ["system", "システム", "跟随系统"],
  theme_light: ["light", "ライト", "浅色"],
  theme_dark: ["dark", "ダーク", "深色"],
  language: ["Language", "言語", "语言"],
  layers_heads: ["{layers} layers × {heads} heads", "{layers} 層 × {heads} ヘッド", "{layers} 层 × {heads} 头"],
  save: ["Save", "保存", "保存"],
  saved: ["{name} was saved.", "{name} を保存しました。", "已保存 {name}。"],
  tokens: ["{n} tokens", "{n} トークン", "{n} 个词元"],
} satisfies Record<string, Said>;
